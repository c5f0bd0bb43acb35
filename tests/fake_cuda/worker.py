"""The process that has the device: reads cases, a line of JSON each, and answers each with a line of JSON."""

import json
import logging
import sys

from tests.fake_cuda import device


def main() -> None:
    device.pretend()
    from tests.fake_cuda import cases  # the device has to be there first

    logging.disable(logging.ERROR)  # torch logs every error in a FakeTensor's shapes, and it is in the answer
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        found = cases.outcome(cases.Case(**json.loads(line)))
        print(json.dumps(found._asdict()), file=answers, flush=True)


if __name__ == "__main__":
    main()
