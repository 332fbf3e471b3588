"""What a site is: as the engine sees it, as a file describes it, and as it behaved."""
