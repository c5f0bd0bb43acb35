"""Uploads, to a hub that is not one: what is asked of it, and what it refuses."""

from types import SimpleNamespace

import pytest
from huggingface_hub.errors import HTTPError

from tape_ds.errors import UserError
from tape_ds.export import folder


class Hub:
    """Remembers what it is asked, and refuses the calls it is told to."""

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
    assert uploaded == "upload_folder" and what["repo_id"] == "me/tiny" and what["folder_path"] == tmp_path


def test_nothing_is_asked_without_a_token(hub, monkeypatch):
    monkeypatch.setattr(folder, "get_token", lambda: None)
    (problem,) = folder.check_push("tiny")
    assert "there is no token" in problem.wrong and "hf auth login" in problem.remedy and hub.asked == []


@pytest.mark.parametrize("name", ["a/b/c", "a--b", "has blank"])
def test_a_name_that_the_hub_does_not_take_is_found_first(hub, name):
    (problem,) = folder.check_push(name)
    assert problem.value == name and hub.asked == []


def test_a_token_that_works_is_no_problem(hub):
    assert folder.check_push("me/tiny") == [] and [call for call, *_ in hub.asked] == ["whoami"]


def test_a_hub_out_of_reach_is_found_before_the_export(hub):
    hub.refused = {"whoami"}
    assert "no way there" in folder.check_push("tiny")[0].wrong


def test_a_refused_upload_says_that_the_folder_is_there(hub, tmp_path):
    hub.refused = {"upload_folder"}
    with pytest.raises(UserError, match=f"hf upload tiny {tmp_path}"):
        folder.push("tiny", tmp_path)
