"""SCROLLS (Shaham et al. 2022, arXiv:2201.03533): seven sets of long texts, each with something to answer or to
summarise, read from their published files, and how a model is given one."""
