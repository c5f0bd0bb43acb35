"""Namespace in which an exported model registers its operators with torch.

torch has one operator of a name in a process. Under this package's names, an exported model would replace the package's
own operators, or those of another export.
"""

import re

NAMESPACE = "tape_" + re.sub(r"\W", "_", __name__)
