"""Recovery as pure functions: classify what is stored, decide what follows, bound how often it is tried."""
