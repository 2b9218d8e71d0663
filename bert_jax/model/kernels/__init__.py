"""Faster forms of the model's formulas for some devices, with the same results.

A reader of the model can skip this folder: ``attend`` computes the formula of
model/bert.py, products are matrix products, and dropout is dropout. CPUs use these
forms by default. Other devices use them only if ComputeConfig names them, because no model
has been trained with them there (docs/limits.md). ``bert_jax doctor`` compares them with
the formula. benchmarks/LOG.md has the gain of each kernel.
"""
