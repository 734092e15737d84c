"""Plans of convolutions: direct by strips, 1x1 over pixels, depthwise, grouped and volumes, transposed, gradients."""
