"""Uploads, to a hub that is not one: what is asked of it, and what it refuses."""

from types import SimpleNamespace

import pytest
from huggingface_hub.errors import HTTPError

from tape_ds.errors import UserError
from tape_ds.export import folder


class Hub:
    """Keeps its calls, and refuses those in ``refused``."""

    def __init__(self):
        self.asked, self.refused = [], set()

    def __getattr__(self, call):
        def answer(*args, **options):
            self.asked.append((call, args, options))
            if call in self.refused:
                raise HTTPError("no way there")
            return SimpleNamespace(repo_id="me/tiny")

        return answer


@pytest.fixture
def hub(monkeypatch):
    fake = Hub()
    monkeypatch.setattr(folder, "HfApi", lambda: fake)
    monkeypatch.setattr(folder, "get_token", lambda: "hf_token")
    return fake


def test_a_new_model_is_private_and_gets_the_folder(hub, tmp_path):
    folder.push("tiny", tmp_path)
    (made, name, how), (uploaded, _, what) = hub.asked
    assert (made, name, how) == ("create_repo", ("tiny",), {"private": True, "exist_ok": True})
    assert (
        uploaded == "upload_folder"
        and what["repo_id"] == "me/tiny"
        and what["folder_path"] == tmp_path
    )


def test_a_refused_upload_names_the_folder(hub, tmp_path):
    hub.refused = {"upload_folder"}
    with pytest.raises(UserError, match=f"hf upload tiny {tmp_path}"):
        folder.push("tiny", tmp_path)


def test_what_keeps_an_upload_from_working_is_found_before_the_export(hub, monkeypatch):
    assert folder.check_push("me/tiny") == [] and folder.check_push("a/b/c") != []
    hub.refused = {"whoami"}
    assert "no way there" in folder.check_push("tiny")[0].wrong
    monkeypatch.setattr(folder, "get_token", lambda: None)
    assert "there is no token" in folder.check_push("tiny")[0].wrong
