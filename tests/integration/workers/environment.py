"""What arrives at a rank: its arguments, and of a token no more than its digest."""

import hashlib
import json
import os
import sys

seen = {
    "rank": int(os.environ["RANK"]),
    "arguments": [word for word in sys.argv[1:] if not word.startswith("--local_rank")],
    "token": hashlib.sha256(os.environ.get("HF_TOKEN", "").encode()).hexdigest(),
    "path": os.environ["PATH"].split(os.pathsep)[0],
}
print("SEEN", json.dumps(seen), flush=True)
