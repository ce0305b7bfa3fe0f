"""What a trace says of cost and acceptance under every mode: its rows, a survey of them, and the model made of both."""
