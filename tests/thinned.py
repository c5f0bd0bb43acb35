"""Long grids and repeated runs: a spread of their cases is in the daily suite, the rest is for ``-m slow``.

``python -m tests.mutants`` shows which planted faults the daily suite finds.
"""

import pytest

ONE_IN = {
    "tests/benchmarks/test_groups.py::test_every_implementation_is_right_or_says_why_not": 5,
    "tests/checkpoint/test_consolidation.py::test_masters_come_back_in_a_trained_folder": 3,
    "tests/distributed/test_steps.py::test_every_encoding_of_the_registry": 11,
    "tests/distributed/test_steps.py::test_four_processes_on_any_heads": 11,
    "tests/distributed/test_steps.py::test_loss_and_gradients_are_those_of_one_process": 5,
    "tests/distributed/test_steps.py::test_special_cases": 3,
    "tests/distributed/test_training.py::test_twenty_steps_are_those_of_one_process": 13,
    "tests/distributed/test_training.py::test_weights_are_those_of_one_process": 7,
    "tests/evaluation/scrolls/test_tasks.py::test_training_and_lm_eval_read_the_same_ids": 5,
    "tests/fake_cuda/test_steps.py::test_a_training_step_waits_for_the_loss_alone": 4,
    "tests/fake_cuda/test_steps.py::test_one_of_each_kind": 8,
    "tests/integration/test_encodings.py::test_a_sharded_encoding_is_the_whole_one": 11,
    "tests/integration/test_methods.py::test_merged_computes_what_two_ranks_trained": 5,
    "tests/kernels/test_decode_attention.py::test_output": 5,
    "tests/kernels/test_memory.py::test_attention_beyond_2_to_the_31": 4,
    "tests/kernels/test_memory.py::test_decoding_beyond_2_to_the_31": 4,
    "tests/kernels/test_memory.py::test_nothing_but_its_tensors_and_nothing_of_others": 5,
    "tests/kernels/test_memory.py::test_updates_of_the_state_beyond_2_to_the_31": 4,
    "tests/kernels/test_operators.py::test_graphs_and_checkpointing_keep_every_number": 5,
    "tests/kernels/test_operators.py::test_torch_knows_the_operator": 5,
    "tests/kernels/test_position_mix.py::test_triton": 11,
    "tests/kernels/test_position_mix.py::test_triton_without": 5,
    "tests/kernels/test_tape_attention.py::test_documents": 5,
    "tests/kernels/test_tape_attention.py::test_output_and_gradients": 7,
    "tests/methods/test_memory_savings.py::test_a_training_is_the_same": 3,
    "tests/models/test_contract.py::test_a_batch_is_its_rows": 5,
    "tests/models/test_contract.py::test_packed_documents_are_separate_runs": 5,
    "tests/models/test_contract.py::test_padding_changes_no_real_token": 11,
    "tests/models/test_contract_saving.py::test_a_saved_model_is_the_model": 3,
    "tests/models/test_contract_saving.py::test_another_window_loads_and_generates_past_it": 7,
    "tests/models/test_contract_training.py::test_bf16_is_finite_and_close": 13,
    "tests/models/test_contract_training.py::test_checkpointing_gives_the_same_gradients": 5,
    "tests/models/test_contract_training.py::test_gradients_are_the_slopes_of_the_loss": 7,
    "tests/models/test_conventions.py::test_an_exported_step_counts_any_cache": 11,
    "tests/models/test_conventions.py::test_blocks_on_disk_compute_the_same": 11,
    "tests/models/test_decoders.py::test_a_family_is_computed_as_transformers_does_or_refused": 11,
    "tests/models/test_formulas.py::test_the_model_is_its_formula": 7,
    "tests/models/test_generation.py::test_a_compiled_model_counts_a_static_cache_in_a_tensor": 7,
    "tests/models/test_generation.py::test_a_left_padded_batch_gives_each_its_own": 11,
    "tests/models/test_generation.py::test_cached_logits_are_the_full_pass_s": 5,
    "tests/models/test_generation.py::test_cached_logits_of_a_padded_batch": 11,
    "tests/models/test_generation.py::test_generation_continues_from_a_cache": 3,
    "tests/models/test_generation.py::test_greedy": 3,
    "tests/models/test_generation.py::test_packed_documents_continue_in_a_cache": 5,
    "tests/models/test_outputs.py::test_a_training_step_compiles_without_a_break": 2,
    "tests/models/test_packing.py::test_packed_is_each_document_alone": 11,
    "tests/models/test_published_configurations.py::test_a_family_with_any_field_left_out_or_any_scaling": 83,
    "tests/models/test_score_bias.py::test_every_mask_at_every_place": 7,
    "tests/models/test_score_bias.py::test_half_precision_keeps_the_bias_in_fp32": 3,
    "tests/models/test_score_bias.py::test_no_tensor_grows_with_the_square_of_the_length": 3,
    "tests/models/test_score_bias.py::test_within_a_window": 3,
    "tests/planning/test_against_tensors.py::test_bytes_of_a_step": 13,
    "tests/planning/test_recipe_job.py::test_every_shipped_recipe_can_be_planned_without_its_model": 5,
    "tests/resilience/test_watchdog.py::test_a_stopped_rank_does_not_hold_up_the_others": 2,
    "tests/scoring/test_inspection.py::test_logits_and_weights_are_the_model_s_own": 4,
    "tests/scoring/test_ruler_texts.py::test_questions_about_a_text": 4,
    "tests/test_remedies.py::test_a_remedy_for_a_recipe_works": 3,
    "tests/test_remedies.py::test_a_remedy_works_for_every_family": 79,
    "tests/test_remedies.py::test_a_remedy_works_under_every_shipped_recipe": 47,
    "tests/tools/experiment/test_table.py::test_every_run_of_every_experiment_loads": 5,
    "tests/training/runs/test_extension_decoders.py::test_trained_with_pose_scored_loaded_again_and_exported": 9,
    "tests/training/runs/test_generated.py::test_every_encoding_is_trained_and_scored_beyond_its_sequences": 11,
    "tests/training/runs/test_pretraining.py::test_resumed_equals_uninterrupted_to_the_last_digit": 2,
    "tests/training/test_ending.py::test_a_malicious_file_is_never_executed": 4,
    "tests/training/test_ending.py::test_a_person_asks_for_a_checkpoint": 3,
    "tests/training/test_ending.py::test_a_spike_is_reported_and_skipped_if_asked": 2,
    "tests/training/test_ending.py::test_a_stop_is_committed_and_resumed_to_the_last_digit": 4,
    "tests/training/test_ending.py::test_checkpoints_after_the_resumed_one_are_set_aside": 2,
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
