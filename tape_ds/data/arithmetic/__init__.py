"""Problems whose length is the question: sums and their like, drawn on the fly, with an exact split by operands."""
