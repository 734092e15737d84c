; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 8 %I, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 8
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.20, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 8
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = load <4 x float>, ptr %.10, align 4
  %.12 = getelementptr float, ptr %.10, i64 4
  %.13 = load <4 x float>, ptr %.12, align 4
  %.14 = getelementptr i64, ptr %I, i64 %.9
  %.15 = load <4 x i64>, ptr %.14, align 8
  %.16 = getelementptr i64, ptr %.14, i64 4
  %.17 = load <4 x i64>, ptr %.16, align 8
  %.18 = getelementptr float, ptr %C, <4 x i64> %.15
  call void @llvm.masked.scatter.v4f32.v4p0(<4 x float> %.11, <4 x ptr> align 4 %.18, <4 x i1> splat (i1 true))
  %.19 = getelementptr float, ptr %C, <4 x i64> %.17
  call void @llvm.masked.scatter.v4f32.v4p0(<4 x float> %.13, <4 x ptr> align 4 %.19, <4 x i1> splat (i1 true))
  %i_next.20 = add nuw nsw i64 %i.8, 1
  %.21 = icmp slt i64 %i_next.20, %.4
  br i1 %.21, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare void @llvm.masked.scatter.v4f32.v4p0(<4 x float>, <4 x ptr>, <4 x i1>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 8 %I, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 8
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.15, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 8
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = load <8 x float>, ptr %.10, align 4
  %.12 = getelementptr i64, ptr %I, i64 %.9
  %.13 = load <8 x i64>, ptr %.12, align 8
  %.14 = getelementptr float, ptr %C, <8 x i64> %.13
  call void @llvm.masked.scatter.v8f32.v8p0(<8 x float> %.11, <8 x ptr> align 4 %.14, <8 x i1> splat (i1 true))
  %i_next.15 = add nuw nsw i64 %i.8, 1
  %.16 = icmp slt i64 %i_next.15, %.4
  br i1 %.16, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare void @llvm.masked.scatter.v8f32.v8p0(<8 x float>, <8 x ptr>, <8 x i1>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
