"""Names of what lies in a study's folder."""

CONFIG_FILE = "config.json"
TABLES_FOLDER = "tables"
