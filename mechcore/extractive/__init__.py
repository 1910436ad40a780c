"""Extractive structures: where a fine-tuned fact is stored, queried and read out.

After Feng, Russell and Steinhardt (arXiv 2412.04614).
"""
