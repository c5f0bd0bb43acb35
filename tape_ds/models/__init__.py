"""The model: configuration, the one model file, attention, conversion, and the positional encodings."""
