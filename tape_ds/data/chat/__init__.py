"""Chat: conversations from a user's files, rendered by the model's own template, with the assistant's tokens as
targets."""
