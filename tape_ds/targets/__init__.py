"""The model that a recipe trains, found once from small files and checked; its weights are fetched afterwards."""
