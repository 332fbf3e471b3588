"""Events on their way: the producer that writes them, the spool on disk, the courier that delivers them."""
