"""The learner: supervised warm start and policy-gradient steps on Megatron-Core. Start reading at loop.py."""
