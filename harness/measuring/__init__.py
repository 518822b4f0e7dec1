"""What a federation has learned, measured: predictions of every client, and the numbers made of them."""
