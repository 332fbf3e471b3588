"""Commands that look at jobs and steer them."""
