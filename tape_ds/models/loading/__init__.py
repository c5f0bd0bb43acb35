"""From a name or path to configuration, weights and tokenizer of a model that others made."""
