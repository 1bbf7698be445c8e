"""What a process is told of its job: place, credentials, addresses, how it joins."""
