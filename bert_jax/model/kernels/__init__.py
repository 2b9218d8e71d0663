"""The model's formulas again, with the same numbers, faster on some device.

A reader of the model can skip this folder: ``attend`` computes the formula of
model/attention.py, products are matrix products, and dropout is dropout. Each kernel's
test compares it with the plain formula. docs/log.md has what each kernel gains.
"""
