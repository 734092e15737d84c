; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 2 %A, ptr noalias readonly captures(none) align 2 %B, ptr noalias captures(none) align 2 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.44, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 16
  %.10 = getelementptr half, ptr %A, i64 %.9
  %.11 = load <8 x half>, ptr %.10, align 2
  %.12 = getelementptr half, ptr %.10, i64 8
  %.13 = load <8 x half>, ptr %.12, align 2
  %.14 = fpext <8 x half> %.11 to <8 x float>
  %.15 = fpext <8 x half> splat (half 0xH4000) to <8 x float>
  %.16 = fmul <8 x float> %.14, %.15
  %.17 = fptrunc <8 x float> %.16 to <8 x half>
  %.18 = fpext <8 x half> %.13 to <8 x float>
  %.19 = fpext <8 x half> splat (half 0xH4000) to <8 x float>
  %.20 = fmul <8 x float> %.18, %.19
  %.21 = fptrunc <8 x float> %.20 to <8 x half>
  %.22 = getelementptr i16, ptr %B, i64 %.9
  %.23 = load <8 x i16>, ptr %.22, align 2
  %.24 = getelementptr i16, ptr %.22, i64 8
  %.25 = load <8 x i16>, ptr %.24, align 2
  %.26 = zext <8 x i16> %.23 to <8 x i32>
  %.27 = shl <8 x i32> %.26, splat (i32 16)
  %.28 = bitcast <8 x i32> %.27 to <8 x float>
  %.29 = fptrunc <8 x float> %.28 to <8 x half>
  %.30 = zext <8 x i16> %.25 to <8 x i32>
  %.31 = shl <8 x i32> %.30, splat (i32 16)
  %.32 = bitcast <8 x i32> %.31 to <8 x float>
  %.33 = fptrunc <8 x float> %.32 to <8 x half>
  %.34 = fpext <8 x half> %.17 to <8 x float>
  %.35 = fpext <8 x half> %.29 to <8 x float>
  %.36 = fadd <8 x float> %.34, %.35
  %.37 = fptrunc <8 x float> %.36 to <8 x half>
  %.38 = fpext <8 x half> %.21 to <8 x float>
  %.39 = fpext <8 x half> %.33 to <8 x float>
  %.40 = fadd <8 x float> %.38, %.39
  %.41 = fptrunc <8 x float> %.40 to <8 x half>
  %.42 = getelementptr half, ptr %C, i64 %.9
  store <8 x half> %.37, ptr %.42, align 2
  %.43 = getelementptr half, ptr %.42, i64 8
  store <8 x half> %.41, ptr %.43, align 2
  %i_next.44 = add nuw nsw i64 %i.8, 1
  %.45 = icmp slt i64 %i_next.44, %.4
  br i1 %.45, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 2 %A, ptr noalias readonly captures(none) align 2 %B, ptr noalias captures(none) align 2 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.27, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 16
  %.10 = getelementptr half, ptr %A, i64 %.9
  %.11 = load <16 x half>, ptr %.10, align 2
  %.12 = fpext <16 x half> %.11 to <16 x float>
  %.13 = fpext <16 x half> splat (half 0xH4000) to <16 x float>
  %.14 = fmul <16 x float> %.12, %.13
  %.15 = fptrunc <16 x float> %.14 to <16 x half>
  %.16 = getelementptr i16, ptr %B, i64 %.9
  %.17 = load <16 x i16>, ptr %.16, align 2
  %.18 = zext <16 x i16> %.17 to <16 x i32>
  %.19 = shl <16 x i32> %.18, splat (i32 16)
  %.20 = bitcast <16 x i32> %.19 to <16 x float>
  %.21 = fptrunc <16 x float> %.20 to <16 x half>
  %.22 = fpext <16 x half> %.15 to <16 x float>
  %.23 = fpext <16 x half> %.21 to <16 x float>
  %.24 = fadd <16 x float> %.22, %.23
  %.25 = fptrunc <16 x float> %.24 to <16 x half>
  %.26 = getelementptr half, ptr %C, i64 %.9
  store <16 x half> %.25, ptr %.26, align 2
  %i_next.27 = add nuw nsw i64 %i.8, 1
  %.28 = icmp slt i64 %i_next.27, %.4
  br i1 %.28, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
