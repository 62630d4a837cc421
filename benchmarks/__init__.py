"""Run by hand: what is too slow, too noisy or too heavy to be a test."""
