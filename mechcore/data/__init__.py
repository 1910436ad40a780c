from mechcore._lazy import attach

attach(__name__)
