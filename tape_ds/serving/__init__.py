"""A server with OpenAI's protocol for one model: completions, chat completions and responses.

Why not ``transformers serve``: it samples only if generation_config says so, drops fields of a request silently,
tokenises and renders templates on the event loop, has endpoints that load other models, and knows neither ``logprobs``
nor ``echo``. Its handlers are private classes that change with every version, so all of this would be overridden method
by method. vLLM, SGLang and llama.cpp cannot compute TAPE (docs/export.md). LitServe has of OpenAI's protocol chat
completions alone. Here FastAPI, pydantic and uvicorn carry the protocol, and transformers' ``generate`` the model.

From a request to its answer:

- ``requests.py``: what may be asked, as strict types. Anything else is refused by name (``refusal.py``).
- ``prompts.py``: token ids of what was asked, and what cannot fit, found in a thread of its own.
- ``engine.py``: one thread that answers one request after another and notices clients that left.
- ``generation.py``: the tokens of an answer; ``settings.py``: how they are drawn; ``prompt_scores.py``: ``echo`` with
  ``logprobs``; ``answer_text.py`` and ``token_texts.py``: their text.
- ``answers.py``: an answer in pieces; ``completion_form.py``, ``chat_form.py``, ``response_form.py``: OpenAI's forms.
- ``app.py``: the endpoints; ``guard.py``: what is refused before a body is read; ``listening.py``: a socket, until the
  server is stopping.
"""
