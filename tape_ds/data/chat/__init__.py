"""Chat: conversations rendered by the model's chat template, with the assistant's tokens as targets."""
