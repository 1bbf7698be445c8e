"""A process's place in its job: rank, addresses, credentials, network options, how it joins."""
