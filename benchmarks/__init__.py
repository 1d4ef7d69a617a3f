"""What Laneway costs, measured: run by `laneway bench`, beside its peers by `make bench-peers`."""
