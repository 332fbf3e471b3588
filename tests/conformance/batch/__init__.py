"""What every dialect of a batch system promises: held on real systems, and on scripted ones that print as others do."""
