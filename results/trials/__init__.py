"""The KIPs on trial: what their claims are, and what the evidence of judged runs says of each. Pure."""
