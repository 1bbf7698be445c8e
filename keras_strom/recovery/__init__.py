"""What a lost worker or a new job goes on from: checkpoints, donations, hand-overs."""
