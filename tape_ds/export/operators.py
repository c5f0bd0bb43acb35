"""Where an exported model registers its operators with torch: in a namespace of its own.

torch has one operator of a name in a process. Under this package's names, an exported model would take the place of the
package's own operators, or of those of another export.
"""

import re

NAMESPACE = "tape_" + re.sub(r"\W", "_", __name__)
