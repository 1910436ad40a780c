"""What a model answers, and how well: readout, accuracy, margin, intervals."""
