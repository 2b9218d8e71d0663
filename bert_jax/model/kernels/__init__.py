"""The model's formulas again, faster on some device, and with the same numbers.

Whoever reads the model for what it computes may skip this folder: attention.py has the
plain formula of attention, products are matrix products, dropout is dropout. Each
kernel's test compares it with the plain formula.
"""
