"""Long grids and repeated runs: a spread of their cases is in the daily suite, the rest is for ``-m slow``.

``python -m tests.mutants`` shows which planted faults the daily suite finds.
"""

import pytest

ONE_IN = {
    "tests/benchmarks/test_groups.py::test_every_implementation_is_right_or_says_why_not": 3,
    "tests/checkpoint/test_consolidation.py::test_masters_come_back_in_a_trained_folder": 3,
    "tests/evaluation/scrolls/test_tasks.py::test_training_and_lm_eval_read_the_same_ids": 5,
    "tests/integration/test_encodings.py::test_a_sharded_encoding_is_the_whole_one": 11,
    "tests/integration/test_export.py::test_it_works_beside_the_package": 2,
    "tests/integration/test_methods.py::test_merged_computes_what_two_ranks_trained": 5,
    "tests/models/test_contract_saving.py::test_another_window_loads_and_generates_past_it": 5,
    "tests/models/test_contract_training.py::test_bf16_is_finite_and_close": 3,
    "tests/models/test_contract_training.py::test_gradients_are_the_slopes_of_the_loss": 3,
    "tests/models/test_conventions.py::test_an_exported_step_counts_any_cache": 7,
    "tests/models/test_decoders.py::test_a_family_is_computed_as_transformers_does_or_refused": 3,
    "tests/models/test_generation.py::test_a_compiled_model_counts_a_static_cache_in_a_tensor": 3,
    "tests/models/test_generation.py::test_a_left_padded_batch_gives_each_its_own": 5,
    "tests/models/test_generation.py::test_cached_logits_are_the_full_pass_s": 3,
    "tests/models/test_generation.py::test_cached_logits_of_a_padded_batch": 3,
    "tests/models/test_generation.py::test_packed_documents_continue_in_a_cache": 3,
    "tests/models/test_outputs.py::test_a_training_step_compiles_without_a_break": 2,
    "tests/models/test_packing.py::test_packed_is_each_document_alone": 5,
    "tests/models/test_published_configurations.py::test_a_family_with_any_field_left_out_or_any_scaling": 23,
    "tests/models/test_score_bias.py::test_every_mask_at_every_place": 5,
    "tests/models/test_score_bias.py::test_no_tensor_grows_with_the_square_of_the_length": 3,
    "tests/models/test_score_bias.py::test_within_a_window": 3,
    "tests/distributed/test_steps.py::test_every_encoding_of_the_registry": 5,
    "tests/distributed/test_steps.py::test_four_processes_on_any_heads": 5,
    "tests/distributed/test_steps.py::test_special_cases": 3,
    "tests/distributed/test_training.py::test_twenty_steps_are_those_of_one_process": 13,
    "tests/planning/test_against_tensors.py::test_bytes_of_a_step": 5,
    "tests/tools/experiment/test_table.py::test_every_run_of_every_experiment_loads": 5,
    "tests/training/runs/test_generated.py::test_every_encoding_is_trained_and_scored_beyond_its_sequences": 11,
    "tests/test_remedies.py::test_a_remedy_for_a_recipe_works": 2,
    "tests/test_remedies.py::test_a_remedy_works_for_every_family": 20,
    "tests/test_remedies.py::test_a_remedy_works_under_every_shipped_recipe": 25,
    "tests/training/runs/test_extension_decoders.py::test_trained_with_pose_scored_loaded_again_and_exported": 5,
    "tests/training/runs/test_pretraining.py::test_resumed_equals_uninterrupted_to_the_last_digit": 2,
    "tests/training/test_ending.py::test_a_malicious_file_is_never_executed": 4,
    "tests/training/test_ending.py::test_a_person_asks_for_a_checkpoint": 3,
    "tests/training/test_ending.py::test_a_spike_is_reported_and_skipped_if_asked": 2,
    "tests/training/test_ending.py::test_a_stop_is_committed_and_resumed_to_the_last_digit": 3,
    "tests/training/test_ending.py::test_checkpoints_after_the_resumed_one_are_set_aside": 2,
    "tests/planning/test_recipe_job.py::test_every_shipped_recipe_can_be_planned_without_its_model": 5,
    "tests/methods/test_memory_savings.py::test_a_training_is_the_same": 3,
    "tests/training/test_samples.py::test_samples_do_not_change_the_losses": 2,
    "tests/training/test_trainer.py::test_resumed_equals_uninterrupted_to_the_last_digit": 3,
}
"""A test of many cases -> the first case and every so many-th after it are daily. The number should divide no dimension
of a grid that is a product: the daily cases would all have one value there."""


def thin(items: list[pytest.Item]) -> None:
    """Mark the other cases slow."""
    seen = dict.fromkeys(ONE_IN, 0)
    for item in items:
        name = item.nodeid.partition("[")[0]
        if name in seen:
            if seen[name] % ONE_IN[name]:
                item.add_marker(pytest.mark.slow)
            seen[name] += 1
