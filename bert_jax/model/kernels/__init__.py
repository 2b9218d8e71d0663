"""Faster forms of the model's formulas for some devices, with the same results.

A reader of the model can skip this folder: ``attend`` computes the formula of
model/attention.py, products are matrix products, and dropout is dropout. Each kernel's
test compares it with the plain formula. docs/log.md has the gain of each kernel.
"""
