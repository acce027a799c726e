"""The paper, figure by figure: experiments, pictures, and a verdict on each claim."""
