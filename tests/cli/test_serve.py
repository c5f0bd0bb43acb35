"""The server over loopback, asked by OpenAI's own client: the text of ``generate``, and refusals."""

import argparse
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from tape_ds.checkpoint import source_model
from tape_ds.cli import serve
from tape_ds.export import folder
from tape_ds.scoring import models
from tests.export.conftest import YARN, base, run  # noqa: F401  (fixtures)
from tests.export.test_wrapped import wrapped

openai = pytest.importorskip("openai")
uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

PROMPT = "w5 w6 w7 w8"
LENGTH = 128
"""Of the models here."""


def found(name_or_path):
    options = {
        "tokenizer": None,
        "dtype": "auto",
        "device": "cpu",
        "position_updates": "on",
        "rope_scaling": "own",
        "trust_remote_code": False,
        "base_anyway": False,
    }
    return models.find(argparse.Namespace(model=str(name_or_path), **options))


@contextmanager
def serving(name_or_path, name="tiny", template=None, length=LENGTH):
    """A client of the model at a name or path."""
    from tape_ds.serving.app import application
    from tape_ds.serving.served import Served
    from tests.serving.running import listening

    model = found(name_or_path)
    tokenizer = model.tokenizer()
    tokenizer.chat_template = template
    with listening(application(Served(model.load(), tokenizer, name, length))) as port:
        client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0
        )
        with client:
            yield client


def generated(name_or_path, prompt, tokens):
    """The greedy text that ``generate`` gives."""
    model, tokenizer = (
        found(name_or_path).load(),
        AutoTokenizer.from_pretrained(found(name_or_path).folder),
    )
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    out = model.generate(ids, max_new_tokens=tokens, do_sample=False)
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


@pytest.fixture(scope="module")
def folders(run, base, tmp_path_factory):  # noqa: F811
    made = tmp_path_factory.mktemp("served")
    trained, plain = run(), run("rope", "norms", YARN, trained=("norm",))
    for name, each in (("own code", trained), ("plain", plain)):
        folder.write(source_model.find(str(each)), made / name, name)
    settings = LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    torch.manual_seed(2)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), settings).save_pretrained(
        made / "adapter"
    )
    AutoTokenizer.from_pretrained(base).save_pretrained(made / "adapter")
    return {
        "run": trained,
        "own code": made / "own code",
        "plain": made / "plain",
        "adapter": made / "adapter",
    }


def test_a_model_with_pictures_answers_by_its_decoder_and_its_tokenizer(tmp_path):
    model = wrapped("qwen3_5", tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    prompt = "def add(a, b):"
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    out = model.generate(input_ids=ids, max_new_tokens=8, do_sample=False)
    wanted = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    assert wanted.strip()
    asked = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0}
    with serving(tmp_path, length=32) as client:
        answer = client.completions.create(**asked)
    assert answer.choices[0].text == wanted and answer.usage.prompt_tokens == ids.shape[1]


@pytest.mark.parametrize("kind", ["run", "own code", "plain", "adapter"])
def test_a_completion_is_the_greedy_text_of_generate(folders, kind):
    wanted = generated(folders[kind], PROMPT, 12)
    asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    with serving(folders[kind], length=64) as client:
        whole = client.completions.create(**asked)
        assert [each.id for each in client.models.list()] == ["tiny"]
        pieces = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True)]
    assert (
        whole.choices[0].text == "".join(piece.text for piece in pieces) == wanted
        and len(wanted.split()) > 4
    )
    assert whole.usage.prompt_tokens == 4 and len(pieces) > 4


def test_a_tokenizer_that_ends_texts_does_not_end_a_prompt(folders, tmp_path):
    wanted, ending = (
        generated(folders["plain"], PROMPT, 6),
        shutil.copytree(folders["plain"], tmp_path / "ending"),
    )
    tokenizer = AutoTokenizer.from_pretrained(ending)
    end = (tokenizer.eos_token, tokenizer.eos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {end[0]}", special_tokens=[end]
    )
    tokenizer.save_pretrained(ending)
    asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 6, "temperature": 0}
    with serving(ending) as client:
        whole = client.completions.create(**asked)
        pieces = [
            chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)
        ]
    assert whole.choices[0].text == "".join(pieces) == wanted and whole.usage.prompt_tokens == 4


def test_a_chat_is_answered_whole_and_as_a_stream(folders):
    template = "w1 {% for m in messages %}{{ m['content'] }} {% endfor %}"
    wanted = generated(folders["run"], f"w1 {PROMPT}", 6)
    asked = {
        "model": "tiny",
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 6,
        "temperature": 0,
    }
    with serving(folders["run"], template=template) as client:
        whole = client.chat.completions.create(**asked).choices[0].message.content
        pieces = [
            chunk.choices[0].delta.content or ""
            for chunk in client.chat.completions.create(**asked, stream=True)
        ]
    assert whole == "".join(pieces) == wanted


def test_a_prompt_without_room_for_an_answer_is_refused(folders):
    asked = {"model": "tiny", "max_tokens": 4}
    message = [{"role": "user", "content": "w5 " * 99}]
    with serving(folders["run"], template="{{ messages[0]['content'] }}", length=16) as client:
        with pytest.raises(openai.BadRequestError, match="no room"):
            client.completions.create(prompt="w5 " * 16, **asked)
        with pytest.raises(openai.BadRequestError, match="no room"):
            client.completions.create(prompt="w5 " * 40, stream=True, **asked)
        with pytest.raises(openai.BadRequestError, match="no room"):
            client.chat.completions.create(messages=message, **asked)
        with pytest.raises(openai.BadRequestError, match="no room"):
            client.responses.create(model="tiny", input="w5 " * 99)
        left = client.completions.create(
            model="tiny", prompt="w5 " * 13, max_tokens=50, temperature=0
        )
    assert left.usage.completion_tokens <= 3, "an answer ends where the length does"


def test_other_requests_that_cannot_be_answered_are_refused(folders):
    message = [{"role": "user", "content": PROMPT}]
    with serving(folders["plain"]) as client:
        with pytest.raises(openai.BadRequestError, match="no tokens"):
            client.completions.create(model="tiny", prompt="", max_tokens=4)
        with pytest.raises(openai.BadRequestError, match="ask for 1 token or more"):
            client.completions.create(model="tiny", prompt=PROMPT, max_tokens=0)
        with pytest.raises(openai.NotFoundError, match="this server has 'tiny'"):
            client.completions.create(model="another", prompt=PROMPT)
        with pytest.raises(openai.BadRequestError, match="has no chat template"):
            client.chat.completions.create(model="tiny", messages=message)


def test_all_problems_are_in_one_message(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert serve.main([str(tmp_path / "nowhere"), "--port", port]) == 2
    said = capsys.readouterr().err
    assert "2 problems" in said and "cannot be listened at" in said


def test_an_ipv6_address_can_be_listened_at(folders, monkeypatch, capsys):
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as free:
            port = free.getsockname()[1]
    except OSError:
        pytest.skip("this machine has no IPv6")
    monkeypatch.setattr(uvicorn.Server, "run", lambda self: self.config.bind_socket().close())
    assert serve.main([str(folders["plain"]), "--host", "::1", "--port", str(port)]) == 0
    assert f"http://[::1]:{port}/v1" in capsys.readouterr().out


@pytest.fixture
def started(monkeypatch):
    """Arguments of the server that a command would start; none is started."""
    given = {}
    monkeypatch.setattr(uvicorn.Server, "run", lambda self: given.update(vars(self.config)))
    return given


def port_of_none():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


def test_settings_of_the_model_that_are_not_done_are_refused_and_the_remedy_works(
    base,  # noqa: F811
    tmp_path,
    started,
    capsys,
):
    beams = shutil.copytree(base, tmp_path / "beams")
    GenerationConfig(num_beams=4, no_repeat_ngram_size=3).save_pretrained(beams)
    assert serve.main([str(beams), "--port", port_of_none()]) == 2
    said = capsys.readouterr().err
    assert "2 problems" in said and "num_beams = 4" in said and "no_repeat_ngram_size = 3" in said
    assert "remedy: --defaults openai" in said and not started
    assert serve.main([str(beams), "--port", port_of_none(), "--defaults", "openai"]) == 0
    assert started["timeout_graceful_shutdown"] <= 5


def test_port_0_is_one_that_is_free(base, started, capsys):  # noqa: F811
    """The address was printed with port 0, and the real one was nowhere to be read."""
    assert serve.main([str(base), "--port", "0"]) == 0
    assert (
        started["port"] > 0 and f"http://127.0.0.1:{started['port']}/v1" in capsys.readouterr().out
    )


def test_settings_of_the_model_that_are_used_are_named(base, tmp_path, started, capsys):  # noqa: F811
    sampled = shutil.copytree(base, tmp_path / "sampled")
    GenerationConfig(do_sample=True, temperature=0.6, top_k=20).save_pretrained(sampled)
    assert serve.main([str(sampled), "--port", port_of_none()]) == 0
    assert "where a request does not say: temperature 0.6, top_k 20" in capsys.readouterr().out
    assert serve.main([str(sampled), "--port", port_of_none(), "--defaults", "openai"]) == 0
    assert "where a request does not say" not in capsys.readouterr().out


def answered(port, path="/health", **headers):
    """The status of a request to a server that may not listen yet."""
    for _ in range(300):
        try:
            asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
            with urllib.request.urlopen(asked, timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            time.sleep(0.1)
    return pytest.fail("it does not listen")


@pytest.mark.slow
def test_the_command_serves_until_it_is_told_to_stop(folders):
    port = port_of_none()
    command = [
        sys.executable,
        "-m",
        "tape_ds",
        "serve",
        str(folders["run"]),
        "--port",
        port,
        "--name",
        "mine",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert "mine, up to 128 tokens" in server.stdout.readline()
            assert answered(port) == 200 and answered(port, Host="elsewhere.example") == 421
            with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
                asked = client.completions.create(
                    model="mine", prompt=PROMPT, max_tokens=6, temperature=0
                )
        finally:
            server.terminate()
    assert asked.choices[0].text == generated(folders["run"], PROMPT, 6)


SLOWED = """
import sys, time
from transformers import LlamaForCausalLM
from tape_ds.cli import serve

real = LlamaForCausalLM.forward
def slowly(*given, **named):
    time.sleep(1)
    return real(*given, **named)
LlamaForCausalLM.forward = slowly
sys.exit(serve.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_long_answer_does_not_keep_the_process_and_its_client_reads_why(base, stop, stream):  # noqa: F811
    """SIGTERM waited for running answers without limit: this one takes a minute. Then it closed the connection."""
    port = port_of_none()
    command = [sys.executable, "-c", SLOWED, str(base), "--port", port, "--name", "mine"]
    body = json.dumps(
        {
            "model": "mine",
            "prompt": PROMPT,
            "max_tokens": 60,
            "logit_bias": {"2": -100},
            "stream": stream,
        }
    ).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert "mine, up to 64 tokens" in server.stdout.readline()
            assert answered(port) == 200
            with socket.create_connection(("127.0.0.1", int(port))) as connection:
                connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                time.sleep(2)
                server.send_signal(stop)
                assert server.wait(timeout=10) in (-signal.SIGTERM, 0)
                said = b"".join(iter(lambda: connection.recv(1 << 16), b""))
                assert b'"code": "server_ending"' in said or b'"code":"server_ending"' in said
                if stream:
                    assert b"data: [DONE]" in said
                else:
                    assert said.startswith(b"HTTP/1.1 503 ")
        finally:
            server.kill()
