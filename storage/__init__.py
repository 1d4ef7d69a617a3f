"""The vocabulary of Laneway, its ledger and log machine, the store's contract, and one adapter a file."""
