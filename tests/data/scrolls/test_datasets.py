"""The table of data sets is the paper's."""

from tape_ds.data.scrolls import examples


def test_table():
    """Order and metrics of the TAPE paper's Table 1; 200 tokens to answer, 1,000 to summarise."""
    found = {each.name: (each.metric, each.answer_tokens) for each in examples.DATASETS.values()}
    assert found == {
        "qasper": ("f1", 200),
        "contract_nli": ("exact_match", 200),
        "narrative_qa": ("f1", 200),
        "quality": ("exact_match", 200),
        "qmsum": ("rouge", 1000),
        "summ_screen_fd": ("rouge", 1000),
        "gov_report": ("rouge", 1000),
    }
