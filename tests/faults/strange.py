"""Values, files, and words of a command line for a recipe made of chance."""

from typing import Any

PLAIN: tuple[Any, ...] = (
    *(True, False, 0, 1, 2, 4, 8, 64, 1000, 10**6, -1, 0.0, 1e-4, 0.5, 1.0, 3.0, 1e6, "tape", "rope", "smollm2"),
    *("zero1", "zero3", "adamw_torch", "no", "steps", "stdlib", "yarn", [8, 64], ["q_proj", "v_proj"], ["stdlib"]),
    *({"rope_type": "yarn", "factor": 2.0}, {"use_reentrant": False}, {"factor": None}, {"k": 1}),
)
"""Values that some field takes."""
STRANGE: tuple[Any, ...] = (
    *(None, 2**63, -(2**70), 10**400, -0.5, 1e308, float("nan"), float("inf"), "nan", "1e400", "0x10", "9" * 5000, "٣"),
    *("", "~", "[", "{", "[1, 2", '{"a": 1}', "'", "a\x00b", "a\nb", "\x1b[31mred", "\u202eright to left", "\ufeff"),
    *("ünïcödé", "🤖", "\ud800", "x" * 70000, "/", "..", "../../etc/passwd", "/dev/null", "/proc/self/mem"),
    *("~nobody-here/x", "a/" * 3000, "$(touch pwned)", "`touch pwned`", "; touch pwned", "%s%n", "{0}", "${HOME}"),
    *("--recipe", "stdlib:*", "text:/nowhere/*.txt", "text:", "zip://a.zip::../x", "https://nowhere.invalid/x"),
    *([], [[]], [None], ["stdlib", 1], [1, "2", 3.5], ["stdlib"] * 2000, {}, {"a": None}, {1: 2}, {None: 1}, {"": ""}),
    *({"rope_type": "yarn", "factor": "x"}, {"factor": -1}, {"a": {"b": {"c": [{}]}}}),
)
"""Values that some field, or every field, must refuse."""

TEXTS: tuple[str, ...] = (
    *("", "\n", "---\n", "null\n", "- a\n- b\n", "just words\n", "a: b: c\n", "\tbad: 1\n", "a: 'open\n"),
    *("a: [1, 2\n", "a: {b: 1\n", "seed: 1\nseed: 2\n", "? [1, 2]\n: 3\n", "? {a: 1}\n: 2\n"),
    *("1: 2\ntrue: 3\nnull: 4\n", "2001-01-01: 1\n", "seed: 2001-99-99\n", "seed: 2001-01-01\n", "seed: 0o9\n"),
    *("seed: 1:30:70\n", "seed: !!int x\n", "seed: !!float y\n"),
    *("seed: !!python/object/apply:os.system ['touch pwned']\n", "seed: !!binary ###\n", "seed: !!timestamp x\n"),
    *("seed: !!set {1, 2}\n", "seed: !!omap [a]\n", "seed: !!pairs [a]\n", "seed: !unknown 1\n"),
    *("seed: !!bool x\n", "a: &a [*a]\n", "seed: &a {b: *a}\n", "a: *nowhere\n", "<<: 1\n", "<<: [1]\n"),
    *("<<: &x {<<: *x}\n", "=: 1\n", "seed: =\n", "a: " + "[" * 400 + "\n", "a: " + "[" * 3000 + "]" * 3000 + "\n"),
    *("a: " + "{a: " * 2000 + "}" * 2000 + "\n", "%YAML 9.9\n---\na: 1\n", "%TAG ! x\n---\na: 1\n"),
    *("--- a\n--- b\n", "seed: 1\n...\nmore\n", "seed: \x07\n", "\ufeffseed: 1\n", "base: demo\nbase: tiny\n"),
    *("base: [demo]\n", "base: 7\n", "base: nowhere\n", "base: a\x00b.yaml\n", "launcher: 7\n", "launcher: [a]\n"),
    *("launcher: {a: 1}\n", "launcher:\n", "launcher: extend_lama\n", "launcher: ../x\n", "seed: \r 1\r"),
    "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
    "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ntrain_data: [*d,*d,*d,*d,*d,*d,*d,*d,*d]\n",
)
"""Files that are no recipes, or nearly none."""

BYTES: tuple[bytes, ...] = (*(b"\xff\xfe\x00", b"seed: \xff\n", b"\x00", "seed: 1\n".encode("utf-16"), b"\x80" * 10),)

WORDS: tuple[str, ...] = (
    *("--", "-", "---", "-x", "--9", "--=1", "--seed=", "--seed", "--seed.x=1", "--deepspeed.", "seed"),
    *("--deepspeed.zero_optimization.stage=9", "--rope_parameters..=1", "--recipe", "--recipe=/", "--recipe=a\x00b"),
    *("--recipe=~nobody-here/x.yaml", "--recipe=" + "y" * 5000, "--print_config=maybe", "--local_rank=x"),
    *("--no-such-flag", "--train_data=", "--train_data=,", "--train_data=[1", "--train_data=" + "[" * 5000),
    *("--position_options=" + '{"a":' * 5000, "--position_options.a.b.c=1", "--position_options=[1]"),
    *("--learning_rate=1e999", "--max_steps=" + "9" * 5000, "--seed=١٢", "--ünï=1", "--seed\n=1"),
    *("--deepspeed=/dev/null", "--deepspeed={", '--deepspeed={"zero_optimization": {"stage": "x"}}'),
    *('--deepspeed={"zero_optimization": []}', '--deepspeed={"optimizer": 1}', '--deepspeed={"bf16": 1}'),
    *('--deepspeed={"scheduler": {"type": []}}', '--deepspeed={"train_batch_size": -1}', "--output_dir=/dev/null/x"),
    *("--output_dir=", "--output_dir=a\x00b", "--output_dir=" + "d" * 300, "--data_cache=a\x00b"),
    *("--data_cache=~nobody-here/x", "--resume=" + "c" * 5000, "--resume=a\x00b", "--resume=~nobody-here/x"),
)
"""Words that no shell would object to."""
