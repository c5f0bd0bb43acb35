"""How the work on one model is shared by several processes beside DeepSpeed's ZeRO: applied to a model from outside."""
