"""From data specs to training sequences.

``sources`` reads documents, ``packing`` tokenises them once and cuts sequences, ``pose`` draws skipped positions and
``dataset`` serves every training sample as a pure function of (seed, sample index). ``streaming`` does the same for
text that is never tokenised ahead, ``mixing`` for several sources by weight. ``token_file`` writes and describes files
of nothing but token ids.
"""
