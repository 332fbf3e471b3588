"""What follows from a failure: the rules, and the policy that applies them."""
