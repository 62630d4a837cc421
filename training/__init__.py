"""The recipe that makes a bundled voice. torch lives here and nowhere else."""
