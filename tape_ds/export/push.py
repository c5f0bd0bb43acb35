"""Upload an exported folder to the Hugging Face hub."""

from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HFValidationError, HTTPError
from huggingface_hub.utils import validate_repo_id

from tape_ds.errors import Problem, UserError

_OPTION = "--push"


def check(name: str) -> list[Problem]:
    """Validate name, token and connection before there is anything to upload."""
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        return [Problem(_OPTION, name, str(error), "give NAME, or OWNER/NAME for an organisation's")]
    if get_token() is None:
        return [Problem(_OPTION, name, "there is no token for the hub", "run `hf auth login`, or export HF_TOKEN")]
    try:
        HfApi().whoami()
    except (HTTPError, OSError) as error:
        return [Problem(_OPTION, name, _reason(error), "check the token (`hf auth whoami`) and the connection")]
    return []


def upload(name: str, folder: Path) -> str:
    """Upload a folder as the model ``name``, created as private if it does not exist; return its URL."""
    api = HfApi()
    try:
        repository = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=repository.repo_id, folder_path=folder, commit_message="Export by tape_ds")
    except (HTTPError, OSError) as error:
        remedy = f"the folder {folder} is complete: upload it with `hf upload {name} {folder}`"
        raise UserError(Problem(_OPTION, name, _reason(error), remedy)) from error
    return str(repository)


def _reason(error: Exception) -> str:
    return f"the hub refused, or was not reached ({' '.join(str(error).split())[:300]})"
