"""What the tools' tests share."""

import shutil


def saved(model, base, folder):
    """A model's folder, with the tokenizer of ``base``."""
    model.save_pretrained(folder)
    for file in base.glob("*token*"):
        shutil.copy(file, folder)
    return folder
