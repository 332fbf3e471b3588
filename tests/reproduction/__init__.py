"""Compares the model of pilot jobs with real pilots on a real Slurm cluster under a made-up load: `make reproduce`."""
